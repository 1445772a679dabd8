"""A worker waits for a server that took the request and never answers: cloud storage, a database, a feature service."""

import socket

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

server = socket.create_server(("127.0.0.1", 0))


class FromServer(Dataset):
    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 100

    def __getitem__(self, index):
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"GET sample")
            ready(port=self.address[1], sample=index)
            return torch.tensor(list(connection.recv(10)))  # <- here


if __name__ == "__main__":
    for _batch in DataLoader(FromServer(server.getsockname()), batch_size=4, num_workers=1):
        pass
