#!/bin/sh
# Prints an environment file with new passwords for every user of nats/accounts.conf and for Grafana.
set -eu
# The first is a letter: nats-server would take a word of digits for a number.
random() { printf p; od -An -N16 -tx1 /dev/urandom | tr -d " \n"; }
for user in SYS PUBLISHER_ACME EXECUTOR RECONCILER OPERATOR INSPECTOR OBSERVER AUDITOR; do
	echo "AGENTRUN_${user}_PASSWORD=$(random)"
done
echo "GRAFANA_PASSWORD=$(random)"
