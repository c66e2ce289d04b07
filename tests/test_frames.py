"""Whose the files are that lie on the stack of a running program."""

import pytest

import perfhooks
from perfhooks.core import frames


@pytest.mark.parametrize(
    ("file", "torchs", "ours"),
    [
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", True, False),
        ("/tmp/torchinductor_ann/ab/cabc.py", True, False),
        (perfhooks.__file__, False, True),
        ("/env/lib/python3.11/site-packages/perfhooks_lightning/callback.py", False, True),
        ("/home/ann/train.py", False, False),
    ],
)
def test_files_of_torch_and_perfhooks_differ_from_user_files(file, torchs, ours):
    assert (frames.is_torch(file), frames.is_ours(file)) == (torchs, ours)
