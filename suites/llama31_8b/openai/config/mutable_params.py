"""The server is the user's, or the vendor's."""

mutable_params = ["endpoint", "model_name", "one_server", "server_command", "weights"]
