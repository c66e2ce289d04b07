def test_windows_start_if_torch_warns_at_each_start(monkeypatch):
    """As torch 2.11 does of earlier cycles; here warnings are errors."""
    prepare, module = torch.profiler.profile.prepare_trace, torch.profiler.profiler
    warn = module._warn_once

    def warns(profile):
        module._warn_once("Warning: Profiler clears events at the end of each cycle.")
        prepare(profile)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", warns)
    with perfhooks.Profiler(schedule="wait=0 warmup=1 active=1 repeat=1", background=False) as prof:
        for _ in range(3):
            prof.step()
    assert prof.key_averages() is not None
    assert module._warn_once is warn
