"""As in torchvision's tutorial on detection: pictures and masks side by side, lists as batches."""

import os

import torch
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import tv_tensors
from torchvision.io import read_image
from torchvision.ops.boxes import masks_to_boxes


class PennFudanDataset(Dataset):
    def __init__(self, root, transforms):
        self.root = root
        self.transforms = transforms
        self.imgs = sorted(os.listdir(os.path.join(root, "PNGImages")))
        self.masks = sorted(os.listdir(os.path.join(root, "PedMasks")))

    def __getitem__(self, idx):
        img = read_image(os.path.join(self.root, "PNGImages", self.imgs[idx]))
        mask = read_image(os.path.join(self.root, "PedMasks", self.masks[idx]))
        obj_ids = torch.unique(mask)[1:]
        masks = (mask == obj_ids[:, None, None]).to(dtype=torch.uint8)
        target = {"boxes": masks_to_boxes(masks), "labels": torch.ones((len(obj_ids),), dtype=torch.int64), "image_id": idx}
        return self.transforms(tv_tensors.Image(img), target)

    def __len__(self):
        return len(self.imgs)


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


def main():
    dataset = PennFudanDataset("data/PennFudanPed", lambda *both: both)
    indices = torch.randperm(len(dataset)).tolist()
    data_loader = DataLoader(Subset(dataset, indices[:-50]), batch_size=2, shuffle=True, collate_fn=collate_fn)
    data_loader_test = DataLoader(Subset(dataset, indices[-50:]), batch_size=1, shuffle=False, collate_fn=collate_fn)
    for images, targets in data_loader:
        print(len(images), len(targets), len(data_loader_test))


main()
