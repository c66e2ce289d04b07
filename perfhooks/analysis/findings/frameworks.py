from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.run.circumstances import Circumstances

TORCH: Final = ""
LIGHTNING: Final = "Lightning"
MMENGINE: Final = "mmengine"
TRAINER: Final = "the Trainer"
FABRIC: Final = "the program"
ACCELERATE: Final = "accelerate"

_LOADER: Final = {
    TORCH: ("DataLoader(..., {})", ""),
    TRAINER: ("TrainingArguments(..., {})", "dataloader_"),
    MMENGINE: ("train_dataloader = dict(..., {})", ""),
}

_OPTIONS: Final = {
    TORCH: "Profiler(..., {})",
    LIGHTNING: "ProfilerCallback(..., {})",
    TRAINER: "ProfilerCallback(..., {})",
    MMENGINE: 'custom_hooks = [dict(type="perfhooks_mmengine.ProfilerHook", ..., {})]',
    FABRIC: "ProfilerCallback(..., {})",
    ACCELERATE: "ProfileKwargs(..., {})",
}

_TF32: Final = 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True\n# or: '

CODE: Final[Mapping[str, Mapping[str, str]]] = {
    "fused optimizer": {
        TORCH: "optimizer = torch.optim.{optimizer}(model.parameters(), lr=..., fused=True)",
        TRAINER: (
            'TrainingArguments(..., optim="adamw_torch_fused")\n'
            "# or: Trainer(..., optimizers=(torch.optim.{optimizer}(model.parameters(), lr=..., fused=True), None))"
        ),
        LIGHTNING: (
            "def configure_optimizers(self):\n    return torch.optim.{optimizer}(self.parameters(), lr=..., fused=True)"
        ),
        MMENGINE: 'optim_wrapper = dict(..., optimizer=dict(type="{optimizer}", lr=..., fused=True))',
    },
    "pinned batches": {
        TORCH: 'DataLoader(..., pin_memory=True)\nbatch = batch.to("{device}", non_blocking=True)',
        TRAINER: "TrainingArguments(..., dataloader_pin_memory=True, accelerator_config=dict(non_blocking=True))",
        LIGHTNING: "DataLoader(..., pin_memory=True)   # Lightning then copies without waiting",
        FABRIC: "DataLoader(..., pin_memory=True)   # setup_dataloaders() then copies without waiting",
        MMENGINE: (
            "train_dataloader = dict(..., pin_memory=True)\n"
            "model = dict(..., data_preprocessor=dict(..., non_blocking=True))"
        ),
        ACCELERATE: (
            "DataLoader(..., pin_memory=True)\n"
            "accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))"
        ),
    },
    "tf32": {
        TORCH: _TF32 + 'with torch.autocast("{device}", dtype=torch.bfloat16): output = model(batch)',
        TRAINER: "TrainingArguments(..., tf32=True)   # or: bf16=True",
        LIGHTNING: _TF32 + 'Trainer(..., precision="bf16-mixed")',
        FABRIC: _TF32 + 'Fabric(..., precision="bf16-mixed")',
        MMENGINE: _TF32 + 'optim_wrapper = dict(type="AmpOptimWrapper", dtype="bfloat16", ...)',
        ACCELERATE: _TF32 + 'Accelerator(mixed_precision="bf16")',
    },
    "float16": {
        TORCH: (
            'scaler = torch.amp.GradScaler("{device}")\n'
            'with torch.autocast("{device}", dtype=torch.float16):\n    loss = ...'
        ),
        TRAINER: "TrainingArguments(..., fp16=True)",
        LIGHTNING: 'Trainer(..., precision="16-mixed")',
        FABRIC: 'Fabric(..., precision="16-mixed")',
        MMENGINE: 'optim_wrapper = dict(type="AmpOptimWrapper", loss_scale="dynamic", ...)',
        ACCELERATE: 'Accelerator(mixed_precision="fp16")',
    },
    "autocast": {TORCH: 'with torch.autocast("{device}", dtype=torch.float16):\n    output = model(batch)'},
    "compile": {
        TORCH: "model = torch.compile(model)",
        TRAINER: "TrainingArguments(..., torch_compile=True)",
        LIGHTNING: "trainer.fit(torch.compile(model), ...)",
        MMENGINE: "compile = True   # in the configuration, or Runner(..., cfg=dict(compile=True))",
    },
    "one graph": {TORCH: 'model = torch.compile(model, mode="reduce-overhead")'},
    "fewer launches": {
        TORCH: (
            'model = torch.compile(model, mode="reduce-overhead")\noptimizer = torch.optim.AdamW(params, fused=True)'
        ),
        TRAINER: (
            "TrainingArguments(\n"
            '    ..., torch_compile=True, torch_compile_mode="reduce-overhead", optim="adamw_torch_fused")'
        ),
        MMENGINE: (
            'compile = dict(mode="reduce-overhead")\n'
            'optim_wrapper = dict(..., optimizer=dict(type="AdamW", lr=..., fused=True))'
        ),
    },
    "values read seldom": {
        TORCH: "total += value.detach()   # stays on the device\nif step % 100 == 0:\n    print(total.item() / 100)",
        TRAINER: "TrainingArguments(..., logging_steps=100, logging_nan_inf_filter=False)",
        LIGHTNING: (
            'Trainer(..., log_every_n_steps=100)\nself.log("loss", loss.detach())   # no item(), no prog_bar=True'
        ),
        MMENGINE: 'default_hooks = dict(..., logger=dict(type="LoggerHook", interval=100))',
    },
    "equal shapes": {
        TORCH: "torch._dynamo.mark_dynamic(batch, 0)   # or: DataLoader(..., drop_last=True)",
        TRAINER: "TrainingArguments(..., dataloader_drop_last=True)   # and a collator with pad_to_multiple_of",
        MMENGINE: "train_dataloader = dict(..., drop_last=True)",
    },
    "less validation": {
        TORCH: (
            "with torch.inference_mode():\n    validate(model, validation_loader)   # every 1000 steps, not every 100"
        ),
        TRAINER: 'TrainingArguments(..., eval_strategy="steps", eval_steps=..., per_device_eval_batch_size=...)',
        LIGHTNING: "Trainer(..., val_check_interval=..., limit_val_batches=...)   # or: check_val_every_n_epoch",
        MMENGINE: "train_cfg = dict(..., val_interval=...)",
    },
    "saved aside": {
        TORCH: (
            "from torch.distributed.checkpoint.state_dict_saver import async_save\n"
            "future = async_save(state, checkpoint_id=path)   # future.result() before the next one"
        ),
        TRAINER: "TrainingArguments(..., save_steps=..., save_only_model=True)",
        LIGHTNING: (
            "Trainer(..., plugins=[AsyncCheckpointIO()])   # of lightning.pytorch.plugins.io\n"
            "ModelCheckpoint(..., every_n_train_steps=..., save_weights_only=True)"
        ),
        MMENGINE: 'default_hooks = dict(..., checkpoint=dict(type="CheckpointHook", interval=...))',
    },
    "hidden communication": {
        TORCH: (
            "model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)\n"
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
        ),
        TRAINER: "TrainingArguments(..., ddp_bucket_cap_mb=..., gradient_accumulation_steps=...)",
        LIGHTNING: (
            "Trainer(..., accumulate_grad_batches=..., strategy=DDPStrategy(\n"
            "    gradient_as_bucket_view=True, static_graph=True, ddp_comm_hook=default_hooks.bf16_compress_hook))"
        ),
        MMENGINE: 'model_wrapper_cfg = dict(type="MMDistributedDataParallel", static_graph=True)',
        ACCELERATE: (
            "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(\n"
            "    gradient_as_bucket_view=True, static_graph=True, comm_hook=DDPCommunicationHookType.BF16)])"
        ),
    },
    "fused attention": {
        TORCH: (
            "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)   # or is_causal=True\n"
            "# not: torch.softmax(q @ k.transpose(-2, -1) / scale + mask, -1) @ v"
        ),
        TRAINER: 'AutoModel.from_pretrained(..., attn_implementation="sdpa")',
    },
}
"""Code of fixes, by fix and framework."""


def code_for(advised: str, framework: str = TORCH, **values: object) -> str:
    words = CODE[advised]
    text = words.get(framework, words[TORCH])
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def loader(settings: Mapping[str, object], framework: str = TORCH) -> str:
    """Return the code that sets up a loader; settings have torch's names."""
    call, prefix = _LOADER.get(framework, _LOADER[TORCH])
    arguments = (f"{prefix}{name}={'...' if value is ... else value}" for name, value in settings.items())
    return call.format(", ".join(arguments))


def setting(name: str, framework: str = TORCH) -> str:
    return _LOADER.get(framework, _LOADER[TORCH])[1] + name


def option(name: str, value: bool | str, circumstances: Circumstances) -> str:
    if not circumstances.is_launched:
        return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
    flag = name.replace("_", "-")
    return f'--{flag} "{value}"' if isinstance(value, str) else f"--{flag}" if value else f"--no-{flag}"


def recording(arguments: str, circumstances: Circumstances) -> str:
    if circumstances.is_launched:
        return f"perfhooks run {arguments} ..."
    return _OPTIONS.get(circumstances.framework, _OPTIONS[TORCH]).format(arguments)


def stacks(circumstances: Circumstances) -> str:
    return recording(option("with_stack", True, circumstances), circumstances)
