"""A gateway in front of model replicas that speak the OpenAI HTTP API: the answer arrives although a replica died."""
