#!/bin/bash
# The endpoint script of the QUIC interop runner (https://interop.seemann.io): one image for both roles.
# The program reads ROLE, TESTCASE, REQUESTS, SSLKEYLOGFILE and QLOGDIR by itself and exits with 127 for cases that it lacks.
set -u

# Routes of the simulated network. Comes with the runner's base image.
/setup.sh

if [ "$ROLE" = client ]; then
    # The simulator has to be ready first.
    /wait-for-it.sh sim:57832 -s -t 30
fi
exec /usr/local/bin/tiderace-runner
