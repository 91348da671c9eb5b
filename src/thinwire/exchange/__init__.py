"""The exchange of one step: layers, their aggregators, states and controller."""

from .exchanger import Exchanger

__all__ = ["Exchanger"]
