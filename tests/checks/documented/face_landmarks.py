"""As in PyTorch's tutorial on own data sets: pictures with landmarks, dictionaries as samples, transforms as classes."""

import os

import numpy as np
import pandas as pd
import torch
from skimage import io, transform
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class FaceLandmarksDataset(Dataset):
    def __init__(self, csv_file, root_dir, transform=None):
        self.landmarks_frame = pd.read_csv(csv_file)
        self.root_dir = root_dir
        self.transform = transform

    def __len__(self):
        return len(self.landmarks_frame)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        image = io.imread(os.path.join(self.root_dir, self.landmarks_frame.iloc[idx, 0]))
        landmarks = np.array([self.landmarks_frame.iloc[idx, 1:]], dtype=float).reshape(-1, 2)
        sample = {"image": image, "landmarks": landmarks}
        return self.transform(sample) if self.transform else sample


class RandomCrop:
    def __init__(self, output_size):
        self.output_size = output_size

    def __call__(self, sample):
        height, width = sample["image"].shape[:2]
        top = np.random.randint(0, height - self.output_size + 1)
        left = np.random.randint(0, width - self.output_size + 1)
        return {**sample, "image": transform.resize(sample["image"][top:, left:], (224, 224))}


transformed = FaceLandmarksDataset("faces/face_landmarks.csv", "faces/", transforms.Compose([RandomCrop(224)]))
for i, sample in enumerate(transformed):
    print(i, sample["image"].shape)
    if i == 3:
        break
dataloader = DataLoader(transformed, batch_size=4, shuffle=True, num_workers=0)
for i_batch, batch in enumerate(dataloader):
    print(i_batch, batch["image"].size())
