import pytest

from thinwire.kernels import native


@pytest.fixture(params=native.runnable_builds())
def library(request):
    """Every build of the C kernels that this processor runs; none skips."""
    return native.load(request.param)
