#!/bin/sh
# start.sh VARIANT [options]: `inferload deploy up` with --engine vllm as the default. Other verbs are passed on:
# start.sh list | show | render | status | logs | down [options]. INFERLOAD names the program if it is not in the path.
set -eu
inferload=${INFERLOAD:-inferload}
case ${1:---help} in
list | show | render | status | logs | down | -*) exec "$inferload" deploy "${@:---help}" ;;
*) exec "$inferload" deploy up --engine vllm "$@" ;;
esac
