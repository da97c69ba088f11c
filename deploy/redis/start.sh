#!/bin/sh
# The server of compose.yaml: redis.conf, open to its network, with $REDIS_PASSWORD for the user "poller".
set -eu
umask 077
: "${REDIS_PASSWORD:?the password of the user poller}"
digest=$(printf %s "$REDIS_PASSWORD" | sha256sum | cut -d ' ' -f 1)
sed "s/^user poller on/& #$digest/" /etc/redis/users.acl > /run/redis/users.acl
unset REDIS_PASSWORD
exec redis-server /etc/redis/redis.conf --dir /data --aclfile /run/redis/users.acl --bind '*' '-::*' "$@"
