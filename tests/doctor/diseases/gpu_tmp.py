import sys, time, torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class D(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        if sys.argv[1] == "slowdata":
            time.sleep(0.05)
        return torch.full((3, 64, 64), float(i))


if __name__ == "__main__":
    w = torch.randn(8192, 8192, device="cuda")
    for step, b in enumerate(DataLoader(D(), batch_size=16, num_workers=4, pin_memory=True)):
        x = b.to("cuda", non_blocking=True)
        if sys.argv[1] == "model":
            for _ in range(40):
                w = w @ w
                w = w / w.norm()
            loss = w.sum().item()
        if step == 8:
            ready()
