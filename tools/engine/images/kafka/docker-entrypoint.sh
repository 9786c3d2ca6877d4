#!/bin/bash
# KAFKA_* into server.properties, a folder for its records, then the broker.
set -e
export CLUSTER_ID=${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}
said=$(java -cp "libs/*" kafka.docker.KafkaDockerWrapper setup --default-configs-dir defaults \
    --mounted-configs-dir /mnt --final-configs-dir config 2>&1) \
    || grep "already formatted" <<<"$said" || { echo "$said" && exit 1; }
# shellcheck disable=SC2086 - options
exec java $KAFKA_HEAP_OPTS -cp "libs/*" kafka.Kafka config/server.properties
