"""Contract suites that third-party engines and transports run; imported by nothing at run time."""
