"""Child of `test_overfusion_recording`: answers as the recorder's children do, at once.

A case's fault is the value of `FAULTS` for it; every line that it is asked is noted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--out") + 1])
role = sys.argv[sys.argv.index("--serve") + 1]
faults = json.loads(os.environ["FAULTS"])
sys.stdout.write("ready\n")
sys.stdout.flush()
for line in sys.stdin:
    name = line.strip()
    note = {"role": role, "gpu": os.environ["CUDA_VISIBLE_DEVICES"], "id": name, "at": time.time()}
    with (folder / "notes").open("a") as notes:
        notes.write(json.dumps(note) + "\n")
    fault = faults.get(f"{role} {name}")
    if fault == "ends":
        os._exit(7)
    time.sleep(60 if fault == "hangs" else 0.02)
    row = {name: {"gpu": "h200", "config": "", "registers": 8}}
    sys.stdout.write((json.dumps(row) if role == "size" else "done") + "\n")
    sys.stdout.flush()
