"""As in PyTorch's data tutorial: a data set of pictures with a table of labels, and one look at a batch."""

import os

import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision.io import decode_image
from torchvision.transforms import Lambda, ToTensor


class CustomImageDataset(Dataset):
    def __init__(self, annotations_file, img_dir, transform=None, target_transform=None):
        self.img_labels = pd.read_csv(annotations_file)
        self.img_dir = img_dir
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.img_labels)

    def __getitem__(self, idx):
        image = decode_image(os.path.join(self.img_dir, self.img_labels.iloc[idx, 0]))
        label = self.img_labels.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


training_data = datasets.FashionMNIST(
    root="data",
    train=True,
    download=True,
    transform=ToTensor(),
    target_transform=Lambda(lambda y: torch.zeros(10, dtype=torch.float).scatter_(0, torch.tensor(y), value=1)),
)
train_dataloader = DataLoader(training_data, batch_size=64, shuffle=True)
own_dataloader = DataLoader(CustomImageDataset("labels.csv", "pictures"), batch_size=64, shuffle=True, num_workers=2)
train_features, train_labels = next(iter(train_dataloader))
print(train_features.size(), train_labels.size())
