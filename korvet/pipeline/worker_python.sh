#!/bin/sh
# Spark's Python workers on the driver's own machine: its Python, and its PYTHONPATH instead of Spark's.
# Spark puts a zipped PySpark in front, which every process compiles anew: 0.6 s for each that starts.
PYTHONPATH=$KORVET_WORKER_PATH exec "$KORVET_WORKER_PYTHON" "$@"
