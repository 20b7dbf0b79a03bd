"""What a run of many hours will meet, met here first: the local job, broken in one way at a time."""
