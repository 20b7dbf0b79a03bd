"""The cluster that sandboxes run in on Google Kubernetes Engine: made, scaled, guarded and cleared."""
