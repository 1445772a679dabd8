"""As in the documentation of HF datasets: torch tensors, a loader over a map-style and over a streaming data set, shards by node."""

import torch
from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
ds = load_dataset("nyu-mll/glue", "mrpc", split="train")
ds = ds.map(lambda e: tokenizer(e["sentence1"], truncation=True, padding="max_length"), batched=True)
ds = ds.with_format("torch", device=torch.device("cpu"))
dataloader = DataLoader(ds, batch_size=32, num_workers=4)
for batch in dataloader:
    print(batch["input_ids"].shape)

stream = load_dataset("allenai/c4", "en", streaming=True, split="train").shuffle(buffer_size=10_000, seed=42)
stream = split_dataset_by_node(stream, rank=0, world_size=2)
mixed = interleave_datasets([stream, stream]).with_format("torch")
stream_loader = DataLoader(mixed, batch_size=32, num_workers=4, collate_fn=DataCollatorForLanguageModeling(tokenizer))
for epoch in range(3):
    mixed.set_epoch(epoch)
    for batch in stream_loader:
        print(batch)
