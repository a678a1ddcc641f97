#!/bin/sh
# start.sh VARIANT [options]: `inferload deploy up` with default --engine vllm. Other verbs are passed through:
# start.sh list | show | render | status | logs | down [options]. INFERLOAD: path of the program if it is not in PATH.
set -eu
inferload=${INFERLOAD:-inferload}
case ${1:---help} in
list | show | render | status | logs | down | -*) exec "$inferload" deploy "${@:---help}" ;;
*) exec "$inferload" deploy up --engine vllm "$@" ;;
esac
