"""As in torchvision's documentation: ImageFolder with a pipeline of transforms, a loader for each split, a loop over epochs."""

import torch
from torch import nn, optim
from torchvision import datasets, models, transforms

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
pipelines = {
    "train": transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]),
    "val": transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]),
}
folders = {split: datasets.ImageFolder(f"data/{split}", pipelines[split]) for split in ("train", "val")}
loaders = {split: torch.utils.data.DataLoader(folders[split], batch_size=4, shuffle=True, num_workers=4) for split in ("train", "val")}


def train_model(model, loss_function, optimizer, epochs=25):
    for _epoch in range(epochs):
        for phase in ("train", "val"):
            for inputs, labels in loaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = loss_function(model(inputs), labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
    return model


model = models.resnet18(weights="IMAGENET1K_V1").to(device)
train_model(model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.001))
