#!/bin/sh
# `pip_install.sh PYTHON WORDS`: pip install WORDS, with its steps and counts in place of its output, all of which follows if it fails.
python=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
test -t 1 && terminal=1 || terminal=0
found=0 downloaded=0

show() { # TEXT: the current step; on a terminal in one line
	if [ "$terminal" = 1 ]; then printf '\r\033[K%s' "$1"; else echo "$1"; fi
}

count() {
	if [ "$terminal" = 1 ] || [ $(((found + downloaded) % 25)) = 0 ]; then show "packages: $found found, $downloaded downloaded"; fi
}

# A loop of the shell, since awk may wait for a block of input.
{ PYTHONUNBUFFERED=1 "$python" -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1; echo "pip ended with $?"; } | tee "$log" | {
	while read -r first second rest; do
		case "$first $second $rest" in
		"Installing build dependencies: started"*) show "preparing the build" ;;
		Collecting\ * | Processing\ * | "Requirement already satisfied"*) found=$((found + 1)) && count ;;
		Downloading\ *.whl\ * | "Using cached "*.whl\ *) downloaded=$((downloaded + 1)) && count ;;
		"Building editable for"* | "Building wheel for"*) show "building ${rest#for }" ;;
		"Installing collected packages: "*) show "installing $(echo "$rest" | tr -cd , | wc -c | awk '{ print $1 + 1 }') packages" ;;
		"pip ended with "*) code=${rest#with } ;;
		esac
	done
	if [ "$terminal" = 1 ]; then printf '\r\033[K'; fi
	exit "$code"
}
code=$?
if [ "$code" -ne 0 ]; then
	cat "$log" >&2
	exit "$code"
fi
echo "installed: $*"
