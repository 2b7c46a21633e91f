"""What a job writes about itself: the manifest, the journal, the list of inputs."""
