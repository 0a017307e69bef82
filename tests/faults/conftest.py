from tests.e2e.conftest import box  # noqa: F401
