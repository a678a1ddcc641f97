#!/bin/sh
# Entry point of inferload's container: runs a command by name, a sub-command of inferload, or Locust if the first word is an option.
set -eu
case ${1:-} in
'') exec inferload --help ;;
-*) exec locust "$@" ;;
inferload | locust | python | python3 | sh | bash | sleep) exec "$@" ;;
*) exec inferload "$@" ;;
esac
