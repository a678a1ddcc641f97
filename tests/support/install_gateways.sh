#!/bin/sh
# Proxies of Debian and routers of PyPI for the tests of what is between client and server. Nothing is installed in the system and
# no service is started: the packages are unpacked into the folder. Words: the folder, then a Python of version 3.11 or newer.
set -e
folder=$1
python=$2
# With the libraries of haproxy that few systems have.
packages="nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 caddy"
mkdir -p "$folder"

{
	test -x "$folder/venv/bin/python" || "$python" -m venv "$folder/venv"
	"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check sglang-router==0.3.2 vllm-router==0.1.17
} &
routers=$!

unpacked=0
if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
	rm -rf "$folder/packages" && mkdir "$folder/packages"
	if test "$(id -u)" = 0; then apt-get update -q >/dev/null || unpacked=$?; fi
	# Without its sandbox apt-get, as root, can write into a folder of another user.
	(cd "$folder/packages" && apt-get download -q -o APT::Sandbox::User=root $packages >/dev/null) || unpacked=$?
	for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/root" || unpacked=$?; done
	test $unpacked = 0 || echo "make: no proxies for the tests: apt-get download $packages failed" >&2
else
	echo "make: some tests need nginx, haproxy and caddy: put them on PATH" >&2
fi
wait $routers
exit $unpacked
