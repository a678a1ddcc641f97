#!/bin/sh
# What inferload's container runs: a command by name, a sub-command of inferload, or, where the first word is an option, Locust,
# as Kubernetes operators for Locust call it. It waits first for every URL in INFERLOAD_WAIT_FOR (http://.../health, tcp://host:port).
set -eu
for url in ${INFERLOAD_WAIT_FOR:-}; do
    python -m inferload.deploy.waitfor "$url" --limit-s "${INFERLOAD_WAIT_S:-1800}"
done
case ${1:-} in
'') exec inferload --help ;;
-*) exec locust "$@" ;;
inferload | locust | python | python3 | sh | bash | sleep) exec "$@" ;;
*) exec inferload "$@" ;;
esac
