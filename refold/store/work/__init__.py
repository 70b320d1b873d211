"""Work on many sessions: spread over processes, or shared by workers."""
