#!/bin/sh
# A double of Apptainer for fast tests: it writes each call to $DOUBLE_LOG and runs the program without a container.
case "$1" in
--version) echo "apptainer version 9.8.7"; exit ;;
pull)
  echo "$@" >> "$DOUBLE_LOG"
  case "$4" in *no/such*) echo "FATAL: requested access to the resource is denied" >&2; exit 255 ;; esac
  while [ -e "$DOUBLE_LOG.hold" ]; do sleep 0.05; done
  echo "image of $4" > "$3"; exit ;;
esac
echo "$@" >> "$DOUBLE_LOG"
shift
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
shift
exec "$@"
