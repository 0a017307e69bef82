"""What people read: the journal as prose, the live view, the final report. Reads journals; touches nothing else."""
