#!/bin/sh
# Debian's package of a daemon that tests start themselves: no service is started, now or at the next boot.
# Words: the package, then its services.
set -e
package=$1
shift
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' > $policy
	chmod +x $policy
	trap 'rm -f $policy' EXIT
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$package"
if command -v systemctl >/dev/null; then
	systemctl disable -q "$@" 2>/dev/null || true
fi
