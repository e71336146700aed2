"""What importers share: the registry of converters and how a converter sees its call."""

from meta.frontend.core.call_site import CallSite, Unconvertible, known
from meta.frontend.core.converter import Converter, Converters
from meta.frontend.core.imported_model import ImportedModel

__all__ = ["CallSite", "Converter", "Converters", "ImportedModel", "Unconvertible", "known"]
