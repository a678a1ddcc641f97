#!/bin/sh
# Debian's sshd for the tests, which start one of their own on a loopback port: no service is started, now or at the next boot.
set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' > $policy
	chmod +x $policy
	trap 'rm -f $policy' EXIT
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openssh-server
if command -v systemctl >/dev/null; then
	systemctl disable -q ssh.service ssh.socket 2>/dev/null || true
fi
