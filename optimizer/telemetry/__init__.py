"""What other programs can watch of a study while it runs: Prometheus metrics and OpenTelemetry spans. Everything is derived from
the journal's entries after they were committed; nothing here is asked by a decision, waited for by the loop, or able to stop it."""
