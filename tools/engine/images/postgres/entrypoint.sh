#!/bin/bash
# As the image's own: a new cluster with the superuser's password from a file, or none where
# POSTGRES_HOST_AUTH_METHOD says trust; POSTGRES_DB and the scripts of
# /docker-entrypoint-initdb.d while only the local socket is open, then the server.
set -eu
shopt -s nullglob
if [ "$(id -u)" = 0 ]; then
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
        POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
        export POSTGRES_PASSWORD
    elif [ "${POSTGRES_HOST_AUTH_METHOD:-}" != trust ]; then
        echo "no password: POSTGRES_PASSWORD_FILE is not set" >&2
        exit 1
    fi
    chown postgres "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb -D "$PGDATA" -U postgres --encoding=UTF8 --locale=C.UTF-8 \
        --auth-local=trust --auth-host=scram-sha-256 \
        --pwfile=<(echo "${POSTGRES_PASSWORD:-unused}")
    echo "host all all all ${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >>"$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -w start -o "-c listen_addresses=''"
    if [ -n "${POSTGRES_DB:-}" ]; then createdb -U postgres "$POSTGRES_DB"; fi
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql -v ON_ERROR_STOP=1 --no-psqlrc -U postgres -f "$script"
    done
    pg_ctl -D "$PGDATA" -w stop
fi
exec "$@" -c "listen_addresses=*"
