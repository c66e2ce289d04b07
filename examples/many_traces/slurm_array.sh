#!/bin/sh
#SBATCH --array=0-63
# Reduce the traces of a folder in an array of jobs, one in 64 each; the page comes from what they leave:
#     sbatch examples/many_traces/slurm_array.sh TRACES SHARES && perfhooks report SHARES
exec python - "$1" "$2" <<'PYTHON'
import os, pathlib, sys
import perfhooks

traces, shares = map(pathlib.Path, sys.argv[1:])
turn, turns = int(os.environ["SLURM_ARRAY_TASK_ID"]), int(os.environ["SLURM_ARRAY_TASK_COUNT"])
shares.mkdir(parents=True, exist_ok=True)
for path in sorted(traces.glob("*.json*"))[turn::turns]:
    (shares / f"{path.name}.share").write_bytes(perfhooks.share(path))
PYTHON
