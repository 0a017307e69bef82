"""Control-plane HTTP: health, metrics, server information, one generation. Measured load never travels through here."""
