"""What the PyTorch steps of the speech suites share: log-mel spectrograms on the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from common.speech.mel import MelShape, filterbank


class LogMel(nn.Module):
    """Computes log-mel spectrograms: (N, samples) to (N, mels, frames), in fp32 also under autocast."""

    window: Tensor
    bands: Tensor

    def __init__(self, shape: MelShape) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("window", torch.hann_window(shape.fft), persistent=False)
        self.register_buffer("bands", torch.from_numpy(filterbank(shape)), persistent=False)

    @torch.no_grad()
    def forward(self, audio: Tensor) -> Tensor:
        """Frames are centred on their samples; the audio is mirrored beyond its ends."""
        with torch.autocast(audio.device.type, enabled=False):
            waves = torch.stft(
                audio.float(),
                self.shape.fft,
                self.shape.hop,
                window=self.window,
                pad_mode="reflect",
                return_complex=True,
            )
            return (self.bands @ waves.abs()).clamp(min=self.shape.floor).log()
