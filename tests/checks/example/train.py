import os

import torch
from data import Volumes
from torch.utils.data import DataLoader

dataset = Volumes("scans.h5")
loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=os.cpu_count(), pin_memory=True)
model = torch.nn.Linear(64, 1).cuda()

for epoch in range(20):
    print("epoch", epoch)
    for volumes in loader:
        loss = model(volumes.cuda()).mean()
        loss.backward()
