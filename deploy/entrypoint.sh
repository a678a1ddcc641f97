#!/bin/sh
# Entry point of the container: runs a program by name, a sub-command of inferload, or Locust if the first argument is an option.
set -eu
case ${1:-} in
'') exec inferload --help ;;
-*) exec locust "$@" ;;
inferload | locust | python | python3 | sh | bash | sleep) exec "$@" ;;
*) exec inferload "$@" ;;
esac
