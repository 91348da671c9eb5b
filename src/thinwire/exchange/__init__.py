"""The exchange of one step: layers, their aggregators, their controller and their memory."""

from .exchanger import Exchanger

__all__ = ["Exchanger"]
