"""Property tests draw the same examples in every run of one commit, so that a verdict is of it.

`FUSION_ADVISOR_EXAMPLES=1000` draws others, and more of them where a test asks how many.
"""

from __future__ import annotations

import os
from contextlib import suppress

with suppress(ImportError):  # GPU tests run where no property test does
    from hypothesis import settings

    settings.register_profile("suite", derandomize="FUSION_ADVISOR_EXAMPLES" not in os.environ)
    settings.load_profile("suite")
