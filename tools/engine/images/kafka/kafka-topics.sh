#!/bin/bash
# shellcheck disable=SC2086 - options
exec java $KAFKA_HEAP_OPTS -cp "/opt/kafka/libs/*" org.apache.kafka.tools.TopicCommand "$@"
