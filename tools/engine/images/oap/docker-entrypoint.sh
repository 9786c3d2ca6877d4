#!/bin/bash
set -e
# shellcheck disable=SC2086 - options
exec java $JAVA_OPTS -cp "config:oap-libs/*" \
    org.apache.skywalking.oap.server.starter.OAPServerStartUp
