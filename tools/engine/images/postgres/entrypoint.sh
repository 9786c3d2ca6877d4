#!/bin/bash
# As the image's own: a new cluster with the superuser's password from a file, the scripts
# of /docker-entrypoint-initdb.d while only the local socket is open, then the server.
set -eu
if [ "$(id -u)" = 0 ]; then
    POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
    export POSTGRES_PASSWORD
    chown postgres "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb -D "$PGDATA" -U postgres --encoding=UTF8 --locale=C.UTF-8 \
        --auth-local=trust --auth-host=scram-sha-256 \
        --pwfile=<(echo "$POSTGRES_PASSWORD")
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -w start -o "-c listen_addresses=''"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql -v ON_ERROR_STOP=1 --no-psqlrc -U postgres -f "$script"
    done
    pg_ctl -D "$PGDATA" -w stop
fi
exec "$@" -c "listen_addresses=*"
