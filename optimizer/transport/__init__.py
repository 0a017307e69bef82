"""How a program reaches the box: locally or over SSH. Carries bytes; knows nothing of servers."""
