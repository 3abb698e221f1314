"""A module that starts a thread while it is imported, and waits for it; the thread imports the module."""
import ready

ready.begin(2)
import service
